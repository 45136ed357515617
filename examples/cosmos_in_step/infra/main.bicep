// A plan, an event hub, a container, and Tidemark that scales plan and container in step; ../README.md says how.
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
    planName: 'plan-parcels'
    hubName: 'parcels'
    container: 'shop/parcels/id'
  }
}

module tidemark '../../../infra/main.bicep' = {
  name: 'tidemark-${environmentName}'
  params: {
    environmentName: environmentName
    location: location
    operatorPrincipalId: operatorPrincipalId
    plans: [
      {
        setting: 'PARCELS_PLAN_ID'
        id: world.outputs.planId
      }
    ]
    cosmosContainers: [
      {
        setting: 'PARCELS_CONTAINER_ID'
        id: world.outputs.containerId
      }
    ]
    eventHubs: [
      {
        connection: 'EventHubConnection'
        id: world.outputs.hubId
      }
    ]
    additionalAppSettings: {
      TIDEMARK_CONFIG: 'examples/cosmos_in_step/tidemark.toml'
    }
  }
}

@description('Resource group of the app.')
output AZURE_RESOURCE_GROUP string = tidemark.outputs.AZURE_RESOURCE_GROUP

@description('Name of the function app.')
output AZURE_FUNCTION_NAME string = tidemark.outputs.AZURE_FUNCTION_NAME
