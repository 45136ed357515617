// An event hub, a container, and Tidemark's consumer in slices between them; ../README.md says how.
targetScope = 'subscription'

@description('Name of the azd environment; part of the names of the resource groups.')
param environmentName string

@description('Region.')
param location string

@description('Object id of whoever deploys, who may then read the log.')
param operatorPrincipalId string = ''

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
    hubName: 'departures'
    container: 'airport/departures/origin'
  }
}

module tidemark '../../../infra/main.bicep' = {
  name: 'tidemark-${environmentName}'
  params: {
    environmentName: environmentName
    location: location
    operatorPrincipalId: operatorPrincipalId
    eventHubId: world.outputs.hubId
    cosmosContainerId: world.outputs.containerId
    consumerHosting: 'slices'
    cosmosContainers: [
      {
        setting: 'DEPARTURES_CONTAINER_ID'
        id: world.outputs.containerId
      }
    ]
    additionalAppSettings: {
      TIDEMARK_CONFIG: 'examples/hub_into_cosmos/tidemark.toml'
      EVENTHUB_RATELIMIT: '500'
    }
  }
}

@description('Resource group of the app.')
output AZURE_RESOURCE_GROUP string = tidemark.outputs.AZURE_RESOURCE_GROUP

@description('Name of the function app.')
output AZURE_FUNCTION_NAME string = tidemark.outputs.AZURE_FUNCTION_NAME
