// An event hub, and a web app that publishes to it; ../README.md says how.
targetScope = 'subscription'

@description('Name of the azd environment; part of the names of the resource groups.')
param environmentName string

@description('Region.')
param location string

var tags = {
  'azd-env-name': environmentName
}

resource group 'Microsoft.Resources/resourceGroups@2024-03-01' = {
  name: 'rg-${environmentName}-example'
  location: location
  tags: tags
}

module world '../../infra/world.bicep' = {
  name: 'world'
  scope: group
  params: {
    location: location
    tags: tags
    token: uniqueString(group.id)
    hubName: 'orders-placed'
  }
}

module identity '../../../infra/app/identity.bicep' = {
  name: 'identity'
  scope: group
  params: {
    name: 'id-web-${uniqueString(group.id)}'
    location: location
    tags: tags
  }
}

module web './web.bicep' = {
  name: 'web'
  scope: group
  params: {
    name: 'web-${uniqueString(group.id)}'
    location: location
    tags: tags
    hubId: world.outputs.hubId
    identityId: identity.outputs.id
    clientId: identity.outputs.clientId
    principalId: identity.outputs.principalId
    databaseUrl: 'mssql+pyodbc://${identity.outputs.clientId}@sql-${uniqueString(group.id)}${environment().suffixes.sqlServerHostname}/shop?driver=ODBC+Driver+18+for+SQL+Server&authentication=ActiveDirectoryMsi'
  }
}

module sql '../../infra/sql.bicep' = {
  name: 'sql'
  scope: group
  params: {
    serverName: 'sql-${uniqueString(group.id)}'
    databaseName: 'shop'
    location: location
    tags: tags
    principalId: identity.outputs.principalId
    principalName: 'web-shop'
  }
}

@description('Resource group of the app.')
output AZURE_RESOURCE_GROUP string = group.name

@description('Where orders are posted to.')
output SHOP_URL string = web.outputs.url
